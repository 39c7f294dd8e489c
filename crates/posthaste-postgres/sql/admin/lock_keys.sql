-- Acts and settlements both decide who is the first of a key, by looking at rows that the other may just
-- be changing. A settlement writes what waits first and looks at the keys in a later statement; this lock
-- waits for those that have written and keeps the others from writing, so whichever comes second sees
-- what the first one did. Reading goes on, and so do settlements that defer nothing.
lock table posthaste.deferred in share row exclusive mode
