-- One row by its key, for every gateway every few seconds. Keys expire by this clock. With the writing transaction: after a
-- failover or a restore another change may have the number of one that was lost.
select (value::bigint << 32) + (xmin::text::bigint & 4294967295) as version, (extract(epoch from clock_timestamp()) * 1000000)::bigint as now
  from posthaste.state where name = 'gateway_version'
