-- A handler that is a function of the service. Its name is put in for the comment.
select /*function*/(row($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11,
         timestamptz 'epoch' + interval '1 microsecond' * $12::bigint, $13)::posthaste.message)
