-- What became of each message.
create table if not exists :table (
    kafka_message_id VARCHAR(255) PRIMARY KEY,
    topic VARCHAR(100) NOT NULL,
    partition INT NOT NULL,
    "offset" BIGINT NOT NULL,
    consumer_group VARCHAR(100) NOT NULL,
    status VARCHAR(20) CHECK (status IN ('PROCESSED', 'DUPLICATE', 'DLQ', 'SKIPPED')),
    processed_at TIMESTAMPTZ DEFAULT NOW(),
    saga_correlation_id UUID
);
