-- A handler that is a function of the service and takes a whole batch, in order. Its name is put in for the comment.
select /*function*/(array(
         select row(m.id, $2, m.topic, m.partition, m.position, m.address, m.key, m.type, m.headers::jsonb,
                    m.content_type, m.payload, timestamptz 'epoch' + interval '1 microsecond' * m.published_at,
                    m.attempt)::posthaste.message
           from unnest($1::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bytea[], $8::text[], $9::text[],
                       $10::text[], $11::bytea[], $12::bigint[], $13::int[])
                with ordinality as m (id, topic, partition, position, address, key, type, headers, content_type, payload,
                                      published_at, attempt, n)
          order by m.n))
