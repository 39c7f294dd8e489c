-- Version 1 of the local broker's file. It is a file of its own: nothing else lives in it.

create table topics (
  id              integer primary key,
  name            text    not null unique,
  partitions      integer not null,
  -- Kept for this long and up to this size; null is for ever.
  retention_ms    integer,
  retention_bytes integer,
  created_at      integer not null
);

create table partitions (
  id      integer primary key,
  topic   integer not null references topics (id),
  number  integer not null,
  -- The oldest position that is there, and the one that the next message gets.
  first   integer not null default 0,
  next    integer not null default 0,
  bytes   integer not null default 0,
  -- When the last message came. Times in a partition never go back, so that a time can be searched for.
  last_at integer not null default 0,
  unique (topic, number)
);

-- place = partition << 40 | position: each partition is one run of the tree, appended at its end and read in order,
-- without an index of its own. 2^40 positions last for 340 years at 100,000 messages a second.
create table messages (
  place        integer primary key,
  -- A UUID as 16 bytes, any other id as text: the type blob converts neither.
  id           blob,
  key          blob,
  -- A JSON array of [name, value], without the id and the key.
  headers      text,
  payload      blob,
  published_at integer not null
);

-- Ids of the last time, in two generations: new ones go into the current one, both are asked, and at a turn the older
-- one is emptied at once. So an id is remembered for one to two windows, and no index by time is needed.
create table dedup_0 (topic integer not null, id blob not null, primary key (topic, id)) without rowid;
create table dedup_1 (topic integer not null, id blob not null, primary key (topic, id)) without rowid;

-- Who consumes a topic for a group right now. A member lives until it expires or its heart stops.
create table members (
  grp        text    not null,
  topic      text    not null,
  member     text    not null,
  heart      text,
  expires_at integer not null,
  primary key (grp, topic, member)
) without rowid;

-- Since when a group reads a topic.
create table groups (
  grp   text    not null,
  topic text    not null,
  since integer not null,
  primary key (grp, topic)
) without rowid;

-- Where a group is, and who serves the partition for it. The epoch grows with every owner and every seek; whoever has
-- an older one settles nothing.
create table positions (
  grp       text    not null,
  partition integer not null references partitions (id),
  committed integer not null,
  epoch     integer not null default 0,
  owner     text,
  -- How often in a row an owner died without having committed anything, and where the last one began.
  crashes   integer not null default 0,
  taken_at  integer not null default -1,
  primary key (grp, partition)
) without rowid;

-- Small numbers: which generation is current and since when; how often the groups changed.
create table state (name text primary key, value integer not null) without rowid;
insert into state values ('dedup_generation', 0), ('dedup_since', 0), ('group_changes', 0);
