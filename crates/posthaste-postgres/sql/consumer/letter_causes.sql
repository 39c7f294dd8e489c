-- Letters by their cause.
select fingerprint, count(*), (array_agg(disposition order by letter desc))[1] as disposition,
       (array_agg(error_code order by letter desc))[1] as error_code, (array_agg(error order by letter desc))[1] as error,
       min(dead_at) as first_at, max(dead_at) as last_at, (array_agg(letter order by letter desc))[1] as letter
  from posthaste.inbox_dead_letters
 where consumer = $1 /*filter*/
 group by fingerprint
 order by count(*) desc, fingerprint
 limit $2
