-- The rows of messages that run now. The first of a message that comes twice has the row.
, traced as (insert into /*table*/ (kafka_message_id, topic, partition, "offset", consumer_group, status,
                                    saga_correlation_id)
             select /*id*/, topic, partition, coalesce(position, -1), /*group*/, 'PROCESSED', ($7::uuid[])[n::int]
               from (select distinct on (id) * from m where id in (select message_id from ins) order by id, n) m
              order by 1 on conflict do nothing)
