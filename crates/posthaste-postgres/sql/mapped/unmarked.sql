-- In place of marks, where the application makes them: the messages of which nothing is known. Two members may both
-- find that; the unique id among the deferred and the dead lets one of them pass.
 ins as (select m.id as message_id from m where /*condition*/ and not exists (/*found*/))
