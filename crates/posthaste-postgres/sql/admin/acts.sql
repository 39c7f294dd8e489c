-- Lines of the audit that name an event, the newest first. Not those about a consumer's messages. A bounded part of the audit: it has no index on ids.
select at, actor, action, reason
  from (select id, at, actor, action, reason, detail from posthaste.audit order by id desc limit 1000) a
 where jsonb_exists(detail -> 'ids', $1) and detail -> 'consumer' is null
 order by id desc limit 10
