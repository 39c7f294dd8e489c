-- What a handler appended for a message: events of about that time that name it as their cause. A file knows no
-- transactions by number.
select id, topic, appended_at from posthaste_outbox
 where appended_at between ?2 - ?3 and ?2 + ?3 and json_extract(headers, '$."causation-id"') = ?1
 order by seq limit 100
