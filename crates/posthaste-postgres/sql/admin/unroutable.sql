-- A letter among these that no route took, and that none would take now. The letters are locked.
select l.topic from posthaste.dead_letters l
 where l.letter = any ($1) and l.error_code = 'route.none'
   and not exists (
     select from posthaste.lanes s
      where s.retired_at is null and s.sink <> 'unrouted'
        and (s.filter = ''
             or (left(s.filter, 1) = '+' and l.topic like any (string_to_array(substr(s.filter, 2), chr(10))))))
 limit 1
