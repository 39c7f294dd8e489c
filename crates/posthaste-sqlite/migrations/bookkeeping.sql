-- Which versions of the outbox are applied. A table of ours, not `user_version`: the file belongs to the application.
create table if not exists posthaste_migrations (
  version    integer primary key,
  name       text not null,
  checksum   text not null,
  applied_at integer not null
) strict;
