-- The whole of a group in one call, which commits by itself: no transaction of a gateway stays open between two round trips,
-- so a gateway that freezes holds no key of anybody. What the function does, and in which order, stands in its migration.
select request, earlier_hash, earlier_ids
  from posthaste.gateway_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
