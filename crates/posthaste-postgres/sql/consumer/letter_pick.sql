-- The next letters of an act. What is true of them is asked again under their keys' locks.
select letter, topic, order_id from posthaste.inbox_dead_letters
 where consumer = $1 /*filter*/
 order by letter
 limit $2
