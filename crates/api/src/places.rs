//! Places for connections. When no place is free, a new connection takes the place of one that
//! waits, for its client or for its turn. The user with the most connections loses one: among the
//! user's processes the one with the most, and of its connections the one that has waited longest.
//! Fewer requests run than there are places, so one connection always waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use weir_limits::{CONTROL_CONNECTIONS_MAX, CONTROL_TIMEOUT_SECS, CONTROL_UNREAD_BYTES_MAX};
use weir_switch::stats::{Limit, Limits, limits};

use crate::access::Caller;

const TIMEOUT: Duration = Duration::from_secs(CONTROL_TIMEOUT_SECS);

/// All places.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    next_id: u64,
    open: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    of: Of,
    state: State,
    /// Bytes of the last answer, which its client may still have to take.
    unread: u64,
    /// The place is lost.
    lost: Arc<Notify>,
    /// The place is lost, and a request is to be refused.
    refused: Arc<Notify>,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) caller: Caller,
    /// The number of its process, if the kernel gives it.
    pub(crate) process: Option<i32>,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The connection waits for its client.
    Waits(Instant),
    /// A whole request waits for its turn.
    Queues(Instant),
    /// A request is carried out.
    Works,
}

/// The place of a connection, which is free once this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: u64,
    places: Places,
    lost: Arc<Notify>,
    refused: Arc<Notify>,
    /// The time by which the client has to send, or take, the next bytes.
    deadline: watch::Sender<Option<Instant>>,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places taken, and the bytes of answers that clients have yet to take.
    pub(crate) fn limits(&self) -> Limits {
        let taken = self.lock();
        limits([
            ("control_connections", Limit::new(taken.open.len(), CONTROL_CONNECTIONS_MAX)),
            ("control_unread_bytes", Limit::new(taken.unread(), CONTROL_UNREAD_BYTES_MAX)),
        ])
    }

    #[cfg(test)]
    fn taken(&self) -> usize {
        self.lock().open.len()
    }

    /// A place for a connection; `None` if all are taken, and every connection has a request that is carried out.
    pub(crate) fn enter(&self, of: Of) -> Option<Ticket> {
        let mut taken = self.lock();
        if taken.open.len() >= CONTROL_CONNECTIONS_MAX && !taken.end_longest_waiting(|_| 1, None) {
            return None;
        }
        let (id, now) = (taken.next_id, Instant::now());
        let (lost, refused): (Arc<Notify>, Arc<Notify>) = Default::default();
        taken.next_id += 1;
        let place = Place {
            of,
            state: State::Waits(now),
            unread: 0,
            lost: Arc::clone(&lost),
            refused: Arc::clone(&refused),
        };
        taken.open.insert(id, place);
        let (deadline, _) = watch::channel(Some(now + TIMEOUT));
        Some(Ticket { id, places: self.clone(), lost, refused, deadline })
    }
}

impl Taken {
    fn unread(&self) -> u64 {
        self.open.values().map(|it| it.unread).sum()
    }

    /// Takes the place of the connection that waits longest, of those that weigh most; `false` if none waits.
    fn end_longest_waiting(&mut self, weigh: fn(&Place) -> u64, but: Option<u64>) -> bool {
        let count = |is: &dyn Fn(&Of) -> bool| -> u64 {
            self.open.values().filter(|it| is(&it.of)).map(weigh).sum()
        };
        let others = self.open.iter().filter(|(id, it)| weigh(it) > 0 && Some(**id) != but);
        let waiting = others.filter_map(|(id, it)| match it.state {
            State::Waits(since) | State::Queues(since) => Some((*id, it.of, since)),
            State::Works => None,
        });
        let first = waiting.max_by_key(|(id, of, since)| {
            let (of_user, of_process) =
                (count(&|it| it.caller == of.caller), count(&|it| it == of));
            (of_user, of_process, std::cmp::Reverse((*since, *id)))
        });
        let ended = first.and_then(|(id, ..)| self.open.remove(&id));
        match &ended {
            Some(Place { state: State::Queues(_), refused, .. }) => refused.notify_one(),
            Some(place) => place.lost.notify_one(),
            None => {}
        }
        ended.is_some()
    }
}

impl Ticket {
    /// A request has come: it is carried out, whatever its client does.
    pub(crate) fn works(&self) {
        self.set(State::Works, None);
    }

    /// A request has come, and waits for its turn.
    pub(crate) fn queues(&self) {
        self.set(State::Queues(Instant::now()), None);
    }

    /// A request's body is awaited, under its own limit; or the answer is a stream without an end.
    pub(crate) fn waits_without_end(&self) {
        self.set(State::Waits(Instant::now()), None);
    }

    /// The request is answered: the client has to take the answer, and to begin the next request, in time. If too much
    /// waits to be taken, other connections lose their places.
    pub(crate) fn waits(&self, unread: u64) {
        let now = Instant::now();
        self.set(State::Waits(now), Some(now + TIMEOUT));
        let mut taken = self.places.lock();
        let Some(place) = taken.open.get_mut(&self.id) else { return };
        place.unread = unread;
        while taken.unread() > CONTROL_UNREAD_BYTES_MAX
            && taken.end_longest_waiting(|it| it.unread, Some(self.id))
        {}
    }

    fn set(&self, state: State, deadline: Option<Instant>) {
        if let Some(place) = self.places.lock().open.get_mut(&self.id) {
            place.state = state;
        }
        self.deadline.send_replace(deadline);
    }

    /// True if another connection has the place.
    pub(crate) fn is_lost(&self) -> bool {
        !self.places.lock().open.contains_key(&self.id)
    }

    /// Returns when the request that waits for its turn has lost its place.
    pub(crate) async fn is_refused(&self) {
        self.refused.notified().await;
    }

    /// Returns when the connection has to end: its client is too late, or another connection has its place.
    pub(crate) async fn is_over(&self) {
        let mut deadline = self.deadline.subscribe();
        loop {
            let until = *deadline.borrow_and_update();
            let too_late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = too_late => return,
                () = self.lost.notified() => return,
                changed = deadline.changed() => if changed.is_err() { return },
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.places.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_over(ticket: &Ticket) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let soon = Duration::from_millis(1);
        runtime.block_on(async { tokio::time::timeout(soon, ticket.is_over()).await.is_ok() })
    }

    fn user(user: u32) -> Of {
        Of { caller: Caller::User(user), process: Some(7) }
    }

    #[test]
    fn who_has_most_places_loses_the_one_that_waits_longest() {
        let places = Places::default();
        let few = places.enter(user(1)).unwrap();
        let many: Vec<_> =
            (1..CONTROL_CONNECTIONS_MAX).map(|_| places.enter(user(2)).unwrap()).collect();
        // The first connection has a request, so the second has waited longest.
        many[0].works();
        let _new = places.enter(user(3)).unwrap();
        assert!(is_over(&many[1]));
        assert!(!is_over(&few) && !is_over(&many[0]) && !is_over(&many[2]));
        assert_eq!(places.taken(), CONTROL_CONNECTIONS_MAX);
    }

    #[test]
    fn whose_answers_are_most_to_read_loses_the_one_that_waits_longest() {
        let places = Places::default();
        let [few, first, second, working] = [1, 2, 2, 2].map(|of| places.enter(user(of)).unwrap());
        let third = CONTROL_UNREAD_BYTES_MAX / 3;
        few.waits(third);
        first.waits(third);
        working.works();
        second.waits(third);
        assert!(!is_over(&few) && !is_over(&first) && !is_over(&second));
        working.waits(third);
        assert!(is_over(&first) && !is_over(&few) && !is_over(&second) && !is_over(&working));
        // An answer that is too large for all others is alone.
        few.waits(u64::MAX / 2);
        assert!(is_over(&second) && is_over(&working) && !is_over(&few));
    }

    #[test]
    fn where_weir_works_for_all_there_is_no_place_until_one_is_done() {
        let places = Places::default();
        let all: Vec<_> =
            (0..CONTROL_CONNECTIONS_MAX).map(|_| places.enter(user(1)).unwrap()).collect();
        all.iter().for_each(Ticket::works);
        assert!(places.enter(user(2)).is_none());
        all[3].waits(0);
        let new = places.enter(user(2)).unwrap();
        assert!(is_over(&all[3]));
        drop((all, new));
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn a_users_other_process_keeps_its_place_and_a_request_that_loses_it_is_refused() {
        let places = Places::default();
        let other = places.enter(Of { process: Some(1), ..user(1) }).unwrap();
        other.queues();
        let many: Vec<_> =
            (1..CONTROL_CONNECTIONS_MAX).map(|_| places.enter(user(1)).unwrap()).collect();
        many.iter().for_each(Ticket::queues);
        let _new = places.enter(user(1)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(many[0].is_refused());
        assert!(many[0].is_lost() && !is_over(&many[0]), "its client gets the answer");
        assert!(!other.is_lost() && !many[1].is_lost());
    }
}
