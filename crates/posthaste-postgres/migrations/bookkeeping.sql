-- Which versions of the schema are applied. Made before the first of them.
create table posthaste.migrations (
  version    integer primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default clock_timestamp(),
  applied_by text not null default session_user
);
