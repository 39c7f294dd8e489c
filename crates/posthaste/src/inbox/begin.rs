//! Where reading begins: the database's position wins.
//!
//! Only where the database has none, the broker's counts; only where both have none, what was declared. A
//! start by broker or declaration is saved before anything is read, or a death would declare it again and
//! skip what came between. A partition that was added to a topic which the consumer knows is read from its
//! beginning.
//!
//! A source may have declared a place itself, and the broker shows it as the group's. It is no evidence that
//! the group was there. So it counts only while nothing says that the consumer is old in the topic: a group
//! whose positions expired would pass over all of a partition that was added meanwhile. Positions that other
//! members have in the topic do not say so, for they may have begun a moment ago, all of them from now on.
//!
//! A partition whose bounds are not known waits alone, and the others begin. Where "from now on" is still to
//! be said of a topic, its partitions wait for each other: it is said of all of them, or the last one would
//! be taken for one that was added.
//!
//! A queue has no positions: whatever was not acknowledged comes. What was handed out before is asked for
//! again, under the epoch that counts. Several members may have one queue, so no position is read out of its
//! row. Nor does a death say which message killed: one that takes it beside another may not have seen that
//! one die, and the broker counts its deliveries itself. Only looks at the deferred go carefully by it.
//!
//! Reading begins one before the position. The record there is evidence: if its time is another one, this is
//! another log. A position that somebody else moved at the broker has no effect and is said loudly.

use super::store::{InboxError, InboxStore, SavedPosition, Taken, Witness};
use crate::crash_point;
use crate::mutation::{Mutation, active};
use crate::source::{Partition, PartitionView, SeekTo, Source, SourceError, StartFrom};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a start needs.
pub(crate) struct Beginning {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) store: Arc<dyn InboxStore>,
    pub(crate) member: Arc<str>,
    pub(crate) start_from: StartFrom,
    /// How far the broker's position may be behind without anybody having moved it.
    pub(crate) in_hand_max: i64,
    /// Topics in which this member found a position of the database before.
    pub(crate) old_topics: BTreeSet<Arc<str>>,
    /// The partitions, each with the life it is begun for.
    pub(crate) partitions: Vec<(Partition, u64)>,
}

/// What became of a start.
pub(crate) struct Begun {
    pub(crate) partition: Partition,
    pub(crate) life: u64,
    pub(crate) taken: Taken,
    pub(crate) log_id: Option<String>,
    pub(crate) end: Option<i64>,
    /// The broker's position, if somebody else moved it.
    pub(crate) foreign: Option<i64>,
    /// Whether the database had its position.
    pub(crate) is_known: bool,
    pub(crate) start: Start,
}

pub(crate) enum Start {
    /// Reading goes on with this position, under this epoch.
    At { position: i64, epoch: i64 },
    /// Not without an operator.
    Stopped(String),
    /// Not yet: it is tried again.
    Later(String),
    /// The partition went elsewhere meanwhile.
    Gone,
}

/// Why nothing could be begun.
pub(crate) enum BeginError {
    Store(InboxError),
    Source(SourceError),
}

/// Where to begin, before anybody is asked to.
#[derive(Debug, PartialEq, Eq)]
enum Rule {
    /// The database's position.
    Ours(i64),
    /// This one, which is to be saved first.
    Declared(i64),
    /// The source does not know its bounds yet, or those of a neighbour that it begins with.
    Unknown,
    /// Not without an operator.
    Stop(String),
}

/// A partition, the life it is begun for, and where it begins. Without a view it went elsewhere.
type Judged<'a> = (u64, Taken, Option<(&'a PartitionView, Rule)>);

fn rule(taken: &Taken, view: &PartitionView, start_from: StartFrom, is_old_topic: bool) -> Rule {
    if active(Mutation::BrokersPosition)
        && let Some(committed) = view.committed
    {
        return Rule::Ours(committed);
    }
    if let Some(position) = taken.position {
        if let (Some(ours), Some(theirs)) = (&taken.log_id, &view.log_id)
            && **ours != **theirs
        {
            return Rule::Stop(format!(
                "{}: the saved position {position} belongs to the log {ours}, and the broker now shows {theirs}. Nothing is \
                 read or skipped. If this is the right broker, say where to go on: posthaste consumers seek",
                taken.partition
            ));
        }
        return Rule::Ours(position);
    }
    let declared = match (view.committed, start_from) {
        (Some(_), _) if view.declared && is_old_topic => view.first,
        (Some(committed), _) => Some(committed),
        (None, StartFrom::Latest) if !taken.knows_topic => view.end,
        (None, _) => view.first,
    };
    declared.map_or(Rule::Unknown, Rule::Declared)
}

impl Beginning {
    pub(crate) async fn run(self) -> Result<(Witness, Vec<Begun>), BeginError> {
        let names: Vec<Partition> = self.partitions.iter().map(|(partition, _)| partition.clone()).collect();
        let taking = self.store.take(&names, &self.member).await.map_err(BeginError::Store)?;
        if !self.source.capabilities().seeks {
            return Ok((taking.witness, self.begin_queues(taking.taken).await?));
        }
        let views = self.source.view().await.map_err(BeginError::Source)?;
        let places = self.places(taking.taken, &views);
        let start = |(_, taken, found): &Judged<'_>| match found {
            Some((view, Rule::Declared(position))) => Some(start_of(taken, *position, view)),
            _ => None,
        };
        let starts: Vec<SavedPosition> = places.iter().filter_map(start).collect();
        if !starts.is_empty() {
            // CRASH(consume.started): the rows have no position yet. The next start declares it again;
            // nothing was delivered (G2).
            crash_point!("consume.started");
            // All at once: a partition whose neighbour has a position is taken for one that was added.
            let saving = self.store.save(&self.member, taking.witness, &starts, None).await;
            let saving = saving.map_err(BeginError::Store)?;
            let are_written = starts.iter().map(|start| start.seeks).eq(saving.seeks);
            if saving.witness != taking.witness || !are_written {
                let why = "a start was not saved: the database or an operator has another one".to_owned();
                return Err(BeginError::Store(InboxError::Conflict(why)));
            }
        }
        let mut begun = Vec::new();
        for (life, taken, found) in places {
            begun.push(match found {
                Some((view, rule)) => self.begin(life, taken, view, rule).await?,
                None => Begun::new(life, taken, None, Start::Gone),
            });
        }
        Ok((taking.witness, begun))
    }

    /// Begins with what was not acknowledged. Deliveries are counted from 0 by their tickets.
    async fn begin_queues(&self, taken: Vec<Taken>) -> Result<Vec<Begun>, BeginError> {
        let mut begun = Vec::new();
        for ((_, life), taken) in self.partitions.iter().zip(taken) {
            let taken = Taken { position: None, position_time: None, log_id: None, ..taken };
            let start = match self.source.seek(&taken.partition, SeekTo::Earliest).await {
                Ok(epoch) => Start::At { position: 0, epoch },
                Err(SourceError::NotAssigned(_)) => Start::Gone,
                Err(error) => return Err(BeginError::Source(error)),
            };
            begun.push(Begun::new(*life, taken, None, start));
        }
        Ok(begun)
    }

    /// Where each of them begins.
    fn places<'a>(&self, taken: Vec<Taken>, views: &'a [PartitionView]) -> Vec<Judged<'a>> {
        let found = taken.iter().filter(|taken| taken.position.is_some());
        let mut old_topics: BTreeSet<Arc<str>> =
            found.map(|taken| Arc::clone(&taken.partition.topic)).collect();
        old_topics.extend(self.old_topics.iter().cloned());
        let place = |((partition, life), taken): (&(Partition, u64), Taken)| {
            let is_old = old_topics.contains(&partition.topic);
            let view = views.iter().find(|view| view.partition == *partition);
            let found = view.map(|view| (view, rule(&taken, view, self.start_from, is_old)));
            (*life, taken, found)
        };
        let mut places: Vec<Judged<'a>> = self.partitions.iter().zip(taken).map(place).collect();
        // A neighbour that begins makes the topic known, and "from now on" is not said of a known one.
        let holds_back = |(_, taken, found): &Judged<'_>| {
            let is_unknown = matches!(found, Some((_, Rule::Unknown))) && !taken.knows_topic;
            (is_unknown && self.start_from == StartFrom::Latest).then(|| Arc::clone(&taken.partition.topic))
        };
        let waiting: BTreeSet<Arc<str>> = places.iter().filter_map(holds_back).collect();
        for (_, taken, found) in &mut places {
            if let Some((_, rule @ Rule::Declared(_))) = found
                && waiting.contains(&taken.partition.topic)
            {
                *rule = Rule::Unknown;
            }
        }
        places
    }

    async fn begin(
        &self,
        life: u64,
        mut taken: Taken,
        view: &PartitionView,
        rule: Rule,
    ) -> Result<Begun, BeginError> {
        let is_known = matches!(rule, Rule::Ours(_));
        let (position, before) = match rule {
            Rule::Stop(why) => return Ok(Begun::new(life, taken, Some(view), Start::Stopped(why))),
            Rule::Unknown => {
                let why = format!("{}: the broker does not say yet where the log begins", taken.partition);
                return Ok(Begun::new(life, taken, Some(view), Start::Later(why)));
            }
            Rule::Ours(position) => (position, (position - 1).max(0)),
            Rule::Declared(position) => {
                taken.position = Some(position);
                (position, position)
            }
        };
        let foreign = view.committed.filter(|theirs| {
            is_known && (*theirs > position || theirs.saturating_add(self.in_hand_max) < position)
        });
        let start = match self.source.seek(&taken.partition, SeekTo::Position(before)).await {
            Ok(epoch) => Start::At { position, epoch },
            Err(SourceError::NotAssigned(_)) => Start::Gone,
            Err(error) => return Err(BeginError::Source(error)),
        };
        Ok(Begun { foreign, is_known, ..Begun::new(life, taken, Some(view), start) })
    }
}

/// A start that is saved before anything is read.
fn start_of(taken: &Taken, position: i64, view: &PartitionView) -> SavedPosition {
    SavedPosition {
        partition: taken.partition.clone(),
        position: Some(position),
        position_time: None,
        log_id: view.log_id.as_deref().map(str::to_owned),
        in_hand: None,
        seeks: taken.seeks,
        release: false,
    }
}

impl Begun {
    fn new(life: u64, taken: Taken, view: Option<&PartitionView>, start: Start) -> Self {
        let log_id = view.and_then(|view| view.log_id.as_deref()).map(str::to_owned);
        let (partition, end) = (taken.partition.clone(), view.and_then(|view| view.end));
        Self {
            partition,
            life,
            log_id: log_id.or_else(|| taken.log_id.clone()),
            taken,
            end,
            foreign: None,
            is_known: false,
            start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Care;

    fn taken(position: Option<i64>, log_id: Option<&str>, knows_topic: bool) -> Taken {
        Taken {
            partition: Partition::new("t", 0),
            position,
            position_time: None,
            log_id: log_id.map(str::to_owned),
            seeks: 0,
            care: Care::None,
            knows_topic,
        }
    }

    fn view(committed: Option<i64>, log_id: Option<&str>) -> PartitionView {
        PartitionView {
            partition: Partition::new("t", 0),
            epoch: 1,
            committed,
            declared: false,
            first: Some(3),
            end: Some(90),
            log_id: log_id.map(Into::into),
            in_hand: 0,
            paused: false,
        }
    }

    /// The rule of a partition whose topic this member has found no position in.
    fn rule_of(taken: &Taken, view: &PartitionView, start_from: StartFrom) -> Rule {
        rule(taken, view, start_from, false)
    }

    #[test]
    fn the_databases_position_wins_then_the_brokers_then_what_is_declared() {
        let latest = StartFrom::Latest;
        assert_eq!(rule_of(&taken(Some(7), None, true), &view(Some(50), None), latest), Rule::Ours(7));
        assert_eq!(rule_of(&taken(None, None, true), &view(Some(50), None), latest), Rule::Declared(50));
        assert_eq!(rule_of(&taken(None, None, false), &view(None, None), latest), Rule::Declared(90));
        assert_eq!(
            rule_of(&taken(None, None, false), &view(None, None), StartFrom::Earliest),
            Rule::Declared(3)
        );
        assert_eq!(
            rule_of(&taken(None, None, true), &view(None, None), latest),
            Rule::Declared(3),
            "a partition that was added is read from its beginning"
        );
        let unknown = PartitionView { first: None, end: None, ..view(None, None) };
        assert_eq!(rule_of(&taken(None, None, false), &unknown, latest), Rule::Unknown);
    }

    #[test]
    fn f62_what_the_source_declared_itself_is_no_position_in_a_topic_that_the_consumer_knows() {
        let (new, latest) = (taken(None, None, true), StartFrom::Latest);
        let declared = PartitionView { declared: true, ..view(Some(90), None) };
        for (view, is_old_topic, begins) in [
            (&declared, true, Rule::Declared(3)),
            // A neighbour that began a moment ago, from now on as well, makes no partition an added one.
            (&declared, false, Rule::Declared(90)),
            (&view(Some(50), None), true, Rule::Declared(50)),
            (&PartitionView { first: None, ..declared.clone() }, true, Rule::Unknown),
        ] {
            assert_eq!(rule(&new, view, latest, is_old_topic), begins, "{view:?}, old: {is_old_topic}");
        }
        assert_eq!(rule(&taken(Some(7), None, true), &declared, latest, true), Rule::Ours(7));
    }

    #[test]
    fn f6_a_position_of_another_log_stops_the_partition() {
        let other = rule_of(&taken(Some(7), Some("a"), true), &view(None, Some("b")), StartFrom::Earliest);
        assert!(matches!(&other, Rule::Stop(why) if why.contains("consumers seek")), "{other:?}");
        let same = rule_of(&taken(Some(7), Some("a"), true), &view(None, Some("a")), StartFrom::Earliest);
        assert_eq!(same, Rule::Ours(7));
    }
}
