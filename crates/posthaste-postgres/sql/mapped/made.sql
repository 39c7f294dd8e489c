-- Marks of messages in a mapped table, in the order of their keys: two members queue instead of deadlocking. A message
-- that comes twice is marked once.
 made as (insert into /*keys*/ (/*names*/) select /*values*/
            from (select distinct on (id) * from m where /*condition*/ order by id, n) m
           order by 1 on conflict (/*key*/) do nothing returning /*key*/ as made_key),
 ins as (select m.id as message_id from m join made on made.made_key = /*value*/)
