-- A lane's receipts that are older than the log go, from the front, in bites: its history is looked at as far as a bite
-- reaches, however long it is. The last one is the cursor and stays.
delete from posthaste_receipts
 where sink = ?1 and lane = ?2 and settled_at < ?3
   and n in (select n from posthaste_receipts
              where sink = ?1 and lane = ?2
                and n < (select max(n) from posthaste_receipts where sink = ?1 and lane = ?2)
              order by n limit ?4)
