-- Where each consumer goes on, for controlled replays.
create table if not exists :table (
    consumer_group VARCHAR(100) NOT NULL,
    topic VARCHAR(100) NOT NULL,
    partition INT NOT NULL,
    committed_offset BIGINT NOT NULL,
    last_updated TIMESTAMPTZ DEFAULT NOW(),
    PRIMARY KEY (consumer_group, topic, partition)
);
