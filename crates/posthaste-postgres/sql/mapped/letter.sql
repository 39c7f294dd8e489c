-- A dead letter for people. $8 says why the payload is no JSON. Of headers with one name the last is seen; all bytes
-- live in our own table.
insert into /*table*/ (id, original_topic, original_partition, original_offset, consumer_group, exception_class,
  exception_message, payload, headers)
values ($1, $2, $3, coalesce($4, -1), /*group*/, left($5, 200), $6,
        case when $7::bytea is null then jsonb '{"posthaste": {"encoding": "none"}}'
             when $8::text is not null then jsonb_build_object(
               'posthaste', jsonb_build_object('encoding', 'base64', 'why', $8::text),
               'data', translate(encode($7, 'base64'), chr(10), ''))
             else convert_from($7, 'UTF8')::jsonb end,
        (select jsonb_object_agg(h ->> 0, h -> 1) from jsonb_array_elements($9::text::jsonb) h))
