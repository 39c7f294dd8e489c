-- Dead letters, for people. gen_random_uuid() will do as well: ids are always given.
create table if not exists :table (
    id UUID PRIMARY KEY DEFAULT uuid_generate_v4(),
    original_topic VARCHAR(100) NOT NULL,
    original_partition INT NOT NULL,
    original_offset BIGINT NOT NULL,
    consumer_group VARCHAR(100) NOT NULL,
    exception_class VARCHAR(200),
    exception_message TEXT,
    payload JSONB NOT NULL,
    headers JSONB,
    created_at TIMESTAMPTZ DEFAULT NOW(),
    replay_status VARCHAR(20) DEFAULT 'PENDING' CHECK (replay_status IN ('PENDING', 'REPLAYED', 'ARCHIVED'))
);
