-- Dead letters whose declared time is over. Answers with their keys: what waits behind them may go.
delete from posthaste_inbox_dead_letters
 where letter in (select letter from posthaste_inbox_dead_letters where consumer = ?1 and dead_at < ?2 limit ?3)
returning topic, order_id
