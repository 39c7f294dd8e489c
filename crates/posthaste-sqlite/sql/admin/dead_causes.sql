-- Dead letters by cause. The words are those of each cause's last letter.
select c.*, l.error_class, l.error_code, l.error, l.id
  from (select fingerprint, sink, count(*) as count, min(dead_at) as first_at, max(dead_at) as last_at,
               sum(holds_key) as holding, max(letter) as letter
          from posthaste_dead_letters where /*condition*/ group by fingerprint, sink
         order by count(*) desc, max(letter) desc limit /*limit*/) c
  join posthaste_dead_letters l on l.letter = c.letter
 order by c.count desc, c.letter desc
