-- A page of deferred events by sink and number, by keyset.
select sink, seq, id, topic, key, route, destination, reason, nullif(due_at, 'infinity') as due_at, attempts, replays,
       error_code, last_error, last_error_at, history, appended_at, deferred_at
  from posthaste.deferred d
 where ($1::text is null or (sink, seq) > ($1, $2))/*filter*/
 order by sink, seq limit $3
