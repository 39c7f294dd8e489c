-- Dead letters whose declared time is over. One that holds its key stays: what waits behind it would go.
delete from posthaste_dead_letters
 where letter in (select letter from posthaste_dead_letters where dead_at < ?1 and not holds_key
                   order by dead_at limit ?2)
returning topic
