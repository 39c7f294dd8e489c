use super::*;
use posthaste::source::Received;

const MANY: Limit = Limit { events: 100, bytes: 1 << 20 };

fn partition() -> Partition {
    Partition::new("orders", 0)
}

fn read(position: i64) -> Delivery {
    Delivery {
        ticket: Ticket { partition: partition(), epoch: 0, number: position },
        position: Some(position),
        redelivery: None,
        published_at: None,
        address: None,
        message: Received::default(),
    }
}

/// A member with one partition whose client reads at this position.
fn reading(from: i64) -> Membership {
    let mut state = Membership::new();
    state.begin(partition(), from, Place::Set, Some(from), false);
    state
}

fn moved(state: &mut Membership) -> Place {
    let owned = state.owned(&partition()).expect("ours");
    owned.go_back(Instant::now());
    let place = owned.place;
    if let Place::Move(to) = place {
        (owned.place, owned.at) = (Place::Set, to);
    }
    place
}

fn out(state: &mut Membership) -> Vec<i64> {
    state.hand_out(MANY).iter().map(|delivery| delivery.ticket.number).collect()
}

fn ticket(state: &mut Membership, number: i64) -> Ticket {
    Ticket { partition: partition(), epoch: state.owned(&partition()).expect("ours").epoch, number }
}

#[test]
fn what_is_given_back_is_read_again_and_goes_out_before_anything_newer() {
    let mut state = reading(3);
    state.take((3..8).map(read).collect());
    assert_eq!(state.hand_out(Limit { events: 3, ..MANY }).len(), 3);
    let [done, back] = [3, 4].map(|number| ticket(&mut state, number));
    state.ack(&[done]);
    assert_eq!(state.nack(&back, Instant::now()), Standing::Settled);
    state.take(vec![read(8)]);
    assert_eq!(out(&mut state), [0; 0], "read before the client was moved");
    assert_eq!(moved(&mut state), Place::Move(4));
    state.take((4..9).map(read).collect());
    assert_eq!(out(&mut state), [4, 6, 7, 8], "5 is in hand");
    assert_eq!(state.to_commit()[0].2, 4);
}

#[test]
fn compaction_may_take_what_was_given_back() {
    let mut state = reading(0);
    state.take((0..3).map(read).collect());
    assert_eq!(out(&mut state), [0, 1, 2]);
    let back = ticket(&mut state, 0);
    state.nack(&back, Instant::now());
    assert_eq!(moved(&mut state), Place::Move(0));
    state.take([1, 2, 3].map(read).into());
    assert_eq!(out(&mut state), [3]);
}

#[test]
fn the_clients_position_is_taken_where_nothing_is_before_it() {
    let mut state = reading(0);
    state.take(vec![read(0), read(1)]);
    state.reached(&partition(), 5);
    assert_eq!(state.hand_out(Limit { events: 1, ..MANY }).len(), 1);
    let [first, second] = [0, 1].map(|number| ticket(&mut state, number));
    state.ack(&[first]);
    assert_eq!(state.to_commit()[0].2, 1, "1 waits to be handed out");
    assert!(!state.take_changes().iter().any(|change| matches!(change, Change::Empty { .. })));
    assert_eq!(out(&mut state), [1]);
    let empty = Change::Empty { partition: partition(), epoch: second.epoch, until: 5 };
    assert_eq!(
        [state.take_changes(), state.take_changes()],
        [vec![empty], vec![]],
        "told behind it, and once"
    );
    state.ack(std::slice::from_ref(&second));
    assert_eq!(state.to_commit()[0].2, 5);
    // What was read and forgotten is not stepped over.
    state.take(vec![read(5)]);
    state.reached(&partition(), 9);
    state.owned(&partition()).expect("ours").read_again();
    assert_eq!((state.to_commit()[0].2, moved(&mut state)), (5, Place::Move(5)));
    // Neither is what came when nothing was taken any more.
    state.close(Instant::now());
    state.take(vec![read(5)]);
    state.reached(&partition(), 9);
    assert_eq!(state.to_commit()[0].2, 5);
}

#[test]
fn a_log_that_begins_later_loses_only_what_was_not_read() {
    let mut state = reading(0);
    state.take(vec![read(0), read(1)]);
    state.changes.clear();
    state.misplaced(&partition(), 2, (7, 9), false);
    assert_eq!(state.changes, [Change::Lost { partition: partition(), from: 2, until: 7 }]);
    assert_eq!(out(&mut state), [0, 1]);
    assert_eq!(moved(&mut state), Place::Move(7));
    let both = [0, 1].map(|number| ticket(&mut state, number));
    state.ack(&both);
    assert_eq!(state.to_commit()[0].2, 7);
    state.misplaced(&partition(), 7, (0, 3), false);
    assert!(matches!(state.changes.last(), Some(Change::Beyond { position: 7, end: Some(3), .. })));
    assert!(state.to_commit().is_empty(), "nobody knows whose position that is");
}

#[test]
fn f6_a_log_that_lost_its_end_is_read_nowhere_even_if_it_has_grown_again() {
    for (is_truncated, place) in [(false, Place::Move(5)), (true, Place::Beyond)] {
        let mut state = reading(5);
        state.changes.clear();
        state.misplaced(&partition(), 5, (0, 9), is_truncated);
        assert_eq!(moved(&mut state), place);
        let beyond = Change::Beyond { partition: partition(), position: 5, end: None };
        assert_eq!(state.changes, if is_truncated { vec![beyond] } else { vec![] });
    }
}

#[test]
fn f62_nothing_goes_out_before_the_group_has_a_position() {
    let mut state = Membership::new();
    let epoch = state.begin(partition(), 3, Place::Set, None, true);
    state.take(vec![read(3)]);
    assert_eq!((out(&mut state), state.to_commit()), (vec![], vec![(partition(), epoch, 3)]));
    let written = state.to_commit();
    state.committed(&written);
    assert_eq!(out(&mut state), [3]);
}

#[test]
fn g7_what_is_read_counts_and_a_paused_partition_gives_way() {
    let mut state = reading(0);
    state.take((0..6).map(read).collect());
    assert_eq!(state.hand_out(Limit { events: 2, ..MANY }).len(), 2);
    assert_eq!(state.room(8), 2);
    state.owned(&partition()).expect("ours").paused = true;
    assert_eq!(out(&mut state), [0; 0]);
    state.forget_held();
    assert_eq!((state.room(8), moved(&mut state)), (8, Place::Move(2)));
    let large = Received { payload: Some(vec![0; READY_BYTES_MAX].into()), ..Received::default() };
    state.take(vec![Delivery { message: large, ..read(2) }]);
    assert_eq!(state.room(8), 0);
}
