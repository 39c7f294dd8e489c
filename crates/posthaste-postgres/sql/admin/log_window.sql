-- How far a bounded number of rows of the log reaches, whatever a filter selects of them. By the index alone.
select count(*) as rows, max(seq) as reached
  from (select seq from posthaste.outbox where seq > $1 and seq <= $2 order by seq limit $3) w
