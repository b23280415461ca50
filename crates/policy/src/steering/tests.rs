use super::*;

mod order;

/// A receiver that has taken every frame at once.
struct Prompt;

impl Receiver for Prompt {}

/// A receiver that takes nothing.
struct Stuck;

impl Receiver for Stuck {
    fn has_taken(&self, _queue: usize, _placed: u64, _before: Mark) -> bool {
        false
    }
}

/// A hash whose indirection entry does not name the queue that the tests below record for it.
const HASH: u32 = 0x1234_5600;

/// Returns the queue of a one-frame burst.
fn queue_for(steering: &Steering, hash: u32) -> usize {
    let mut visit = Visit::default();
    let queue = steering.queue_for(hash, &mut visit, &Prompt);
    steering.leave(visit, &Prompt);
    queue
}

#[test]
fn unrecorded_flow_uses_the_indirection_table() {
    let steering = Steering::new(4).unwrap();
    let queues: Vec<_> = (0..8).map(|hash| queue_for(&steering, hash)).collect();
    assert_eq!(queues, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn recorded_flow_follows_its_transmit_queue() {
    let steering = Steering::new(4).unwrap();
    for queue in [3, 1, 0, 2] {
        steering.record(HASH, queue, 0, &Prompt);
        assert_eq!(queue_for(&steering, HASH), queue);
    }
}

#[test]
fn flow_never_follows_another_flows_queue() {
    let steering = Steering::new(4).unwrap();
    let in_same_slot = HASH + weir_limits::STEERING_FLOWS_MAX as u32;
    steering.record(HASH, 3, 0, &Prompt);
    assert_eq!(queue_for(&steering, in_same_slot), 0);
}

#[test]
fn active_flow_keeps_its_slot_and_an_idle_one_yields_it() {
    let steering = Steering::new(4).unwrap();
    let other = HASH + weir_limits::STEERING_FLOWS_MAX as u32;
    let idle_secs = weir_limits::STEERING_FLOW_IDLE_SECS;
    for now_secs in 10..20 {
        steering.record(HASH, 1, now_secs, &Prompt);
        steering.record(other, 2, now_secs, &Prompt);
        steering.record(other, 2, now_secs + idle_secs - 1, &Prompt);
        assert_eq!((queue_for(&steering, HASH), queue_for(&steering, other)), (1, 0));
    }
    steering.record(other, 2, 19 + idle_secs, &Prompt);
    assert_eq!((queue_for(&steering, HASH), queue_for(&steering, other)), (0, 2));
}

#[test]
fn flow_on_a_queue_taken_away_falls_back() {
    let steering = Steering::new(4).unwrap();
    steering.record(HASH, 3, 0, &Prompt);
    steering.set_queues(2).unwrap();
    assert_eq!(queue_for(&steering, HASH), 0);
    assert!((0..10_000).all(|hash| queue_for(&steering, hash) < 2));
}

#[test]
fn recording_a_queue_not_in_use_changes_nothing() {
    let steering = Steering::new(2).unwrap();
    for queue in [2, 255, 256, 257, usize::MAX] {
        steering.record(HASH, queue, 0, &Prompt);
        assert_eq!(queue_for(&steering, HASH), 0, "after recording queue {queue}");
    }
}

#[test]
fn the_same_number_of_queues_leaves_moved_entries_where_they_are() {
    let steering = Steering::new(2).unwrap();
    assert!(steering.begin_move(0, 1, &Prompt));
    assert_eq!(queue_for(&steering, 0), 1);
    steering.set_queues(2).unwrap();
    assert_eq!((queue_for(&steering, 0), steering.moved_entries()), (1, 1));
    steering.set_queues(4).unwrap();
    assert_eq!(queue_for(&steering, 0), 0);
}

#[test]
fn a_table_that_is_given_holds_alone_until_it_is_taken_back() {
    let steering = Steering::new(4).unwrap();
    steering.record(HASH, 3, 0, &Prompt);
    assert_eq!((queue_for(&steering, HASH), steering.is_given()), (3, false));
    steering.give(&std::array::from_fn(|entry| if entry == 1 { 9 } else { 2 }));
    assert!(steering.is_given());
    assert_eq!([HASH, 0, 1, 2].map(|hash| queue_for(&steering, hash)), [2, 2, 0, 2]);
    steering.record(HASH, 1, 0, &Prompt);
    assert!(!steering.begin_move(0, 1, &Prompt), "by load");
    assert_eq!(queue_for(&steering, HASH), 2);
    // There are more changes than can be pending, and none can be made: all entries are tried again.
    steering.revise(&[1; INDIRECTION_LEN], &Stuck);
    (0..3).for_each(|_| steering.look_after(1, &Stuck));
    assert!(steering.entries().iter().all(|entry| entry.queue != 1));
    steering.look_after(1, &Prompt);
    assert!((0..128).all(|hash| queue_for(&steering, hash) == 1));
    steering.take_back();
    assert_eq!([HASH, 0, 1, 2].map(|hash| queue_for(&steering, hash)), [3, 0, 1, 2]);
    steering.revise(&[1; INDIRECTION_LEN], &Prompt);
    assert_eq!(queue_for(&steering, 0), 0, "none is given");
    steering.give(&[1; INDIRECTION_LEN]);
    steering.set_queues(2).unwrap();
    assert!(!steering.is_given());
    assert_eq!(queue_for(&steering, 0), 0);
}

#[test]
fn a_move_that_makes_no_sense_is_refused() {
    let steering = Steering::new(2).unwrap();
    for (entry, to) in [(0, 0), (0, 2), (0, 256), (INDIRECTION_LEN, 1), (usize::MAX, 1)] {
        assert!(!steering.begin_move(entry, to, &Prompt), "entry {entry} to queue {to}");
    }
    assert!(steering.begin_move(0, 1, &Prompt));
    assert!(!steering.begin_move(0, 1, &Prompt), "it is moving");
}

#[test]
fn frames_are_counted_by_entry_and_not_where_a_flow_is_followed() {
    let steering = Steering::new(2).unwrap();
    let followed = 5 + INDIRECTION_LEN as u32;
    steering.record(followed, 0, 0, &Prompt);
    let mut visit = Visit::default();
    for hash in [5, 5, 5, 6, 5, followed, followed] {
        steering.queue_for(hash, &mut visit, &Prompt);
    }
    steering.leave(visit, &Prompt);
    let entries = steering.entries();
    assert_eq!((entries[5].frames, entries[6].frames), (4, 1));
    assert_eq!(entries.iter().map(|entry| entry.frames).sum::<u64>(), 5);
}

#[test]
fn queue_count_outside_the_limit_is_refused_and_named() {
    for queues in [0, QUEUE_PAIRS_MAX + 1, 257, usize::MAX] {
        assert_eq!(Steering::new(queues).unwrap_err(), QueueCountError { queues });
    }
    let steering = Steering::new(QUEUE_PAIRS_MAX).unwrap();
    let error = steering.set_queues(0).unwrap_err();
    assert_eq!(error.to_string(), "0 queue pairs; valid: 1 to 8");
    assert_eq!(steering.queues(), QUEUE_PAIRS_MAX);
}
