-- A lane of the sink that has not yet read what its former filter took, while yet another filter comes.
select l.filter_until, (select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane
                         order by n desc limit 1) as position
  from posthaste_lanes l
 where l.sink = ?1 and l.filter <> ?2 and l.filter_before is not null and position < l.filter_until
 limit 1
