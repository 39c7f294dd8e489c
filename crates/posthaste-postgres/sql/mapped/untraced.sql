-- In place of a table of traces, where there is none.
(select null::text as topic, null::int as partition, null::bigint as "offset", null::timestamptz as processed_at) t
    on true
