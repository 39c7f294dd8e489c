-- Counts hand-overs. Whoever watches the file sees the number change and looks for a free lane at once.
insert into posthaste_state (name, value) values ('freed', '1')
    on conflict (name) do update set value = cast(value as integer) + 1
