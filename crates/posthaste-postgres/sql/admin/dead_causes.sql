-- Dead letters by cause. Grouping reads narrow columns; the words are those of each cause's last letter.
with causes as (
  select fingerprint, sink, count(*) as count, min(dead_at) as first_at, max(dead_at) as last_at,
         count(*) filter (where holds_key) as holding, max(letter) as letter
    from posthaste.dead_letters where true/*filter*/
   group by fingerprint, sink
   order by count(*) desc, max(letter) desc limit $1
)
select c.fingerprint, c.sink, c.count, c.first_at, c.last_at, c.holding, l.error_class, l.error_code, l.error, l.id,
       array(select distinct t.topic from (select topic from posthaste.dead_letters o
              where o.fingerprint = c.fingerprint and o.sink = c.sink order by o.letter desc limit 100) t
              order by t.topic limit 5)::text[] as topics
  from causes c join posthaste.dead_letters l on l.letter = c.letter
 order by c.count desc, c.letter desc
