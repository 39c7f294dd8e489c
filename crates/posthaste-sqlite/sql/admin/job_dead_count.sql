-- Dead letters by what decides whether one can go: its sink, and for one without a route its topic. These are few,
-- the letters many.
select count(*), max(letter), sink, case when error_code = 'route.none' then topic end as topic
  from posthaste_dead_letters where /*condition*/
 group by 3, 4
