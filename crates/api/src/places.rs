//! Places for connections. A new connection without a free place takes the place of one that waits for its client: of
//! the user who has most, the one that waits longest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use weir_limits::{CONTROL_CONNECTIONS_MAX, CONTROL_TIMEOUT_SECS};

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
    caller: Caller,
    /// The time since which the connection waits for its client; `None` while a request is carried out.
    waits_since: Option<Instant>,
    close: Arc<Notify>,
}

/// The place of a connection, which is free once this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: u64,
    places: Places,
    close: Arc<Notify>,
    /// The time by which the client has to send, or take, the next bytes.
    deadline: watch::Sender<Option<Instant>>,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of places taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().open.len()
    }

    /// A place for a connection; `None` if all are taken, and every connection has a request that is carried out.
    pub(crate) fn enter(&self, caller: Caller) -> Option<Ticket> {
        let mut taken = self.lock();
        if taken.open.len() >= CONTROL_CONNECTIONS_MAX && !taken.close_longest_waiting() {
            return None;
        }
        let (id, close, now) = (taken.next_id, Arc::new(Notify::new()), Instant::now());
        taken.next_id += 1;
        let place = Place { caller, waits_since: Some(now), close: Arc::clone(&close) };
        taken.open.insert(id, place);
        let (deadline, _) = watch::channel(Some(now + TIMEOUT));
        Some(Ticket { id, places: self.clone(), close, deadline })
    }
}

impl Taken {
    /// Closes the connection that waits longest; `false` if none waits.
    fn close_longest_waiting(&mut self) -> bool {
        let of_caller = |caller| self.open.values().filter(|it| it.caller == caller).count();
        let waiting =
            self.open.iter().filter_map(|(id, it)| Some((*id, it.caller, it.waits_since?)));
        let first = waiting.max_by_key(|(id, caller, since)| {
            (of_caller(*caller), std::cmp::Reverse((*since, *id)))
        });
        let closed = first.and_then(|(id, ..)| self.open.remove(&id));
        if let Some(place) = &closed {
            place.close.notify_one();
        }
        closed.is_some()
    }
}

impl Ticket {
    /// A request has come: it is carried out, whatever its client does.
    pub(crate) fn works(&self) {
        self.set(None, None);
    }

    /// A request has come, and waits for its body or its turn.
    pub(crate) fn queues(&self) {
        self.set(Some(Instant::now()), None);
    }

    /// The request is answered: the client has to take the answer, and to begin the next request, in time.
    pub(crate) fn waits(&self) {
        let now = Instant::now();
        self.set(Some(now), Some(now + TIMEOUT));
    }

    /// The answer is a stream without an end.
    pub(crate) fn streams(&self) {
        self.queues();
    }

    fn set(&self, waits_since: Option<Instant>, deadline: Option<Instant>) {
        if let Some(place) = self.places.lock().open.get_mut(&self.id) {
            place.waits_since = waits_since;
        }
        self.deadline.send_replace(deadline);
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
                () = self.close.notified() => return,
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

    #[test]
    fn who_has_most_places_loses_the_one_that_waits_longest() {
        let places = Places::default();
        let few = places.enter(Caller::User(1)).unwrap();
        let many: Vec<_> =
            (1..CONTROL_CONNECTIONS_MAX).map(|_| places.enter(Caller::User(2)).unwrap()).collect();
        // The first connection has a request, so the second has waited longest.
        many[0].works();
        let _new = places.enter(Caller::User(3)).unwrap();
        assert!(is_over(&many[1]));
        assert!(!is_over(&few) && !is_over(&many[0]) && !is_over(&many[2]));
        assert_eq!(places.taken(), CONTROL_CONNECTIONS_MAX);
    }

    #[test]
    fn where_weir_works_for_all_there_is_no_place_until_one_is_done() {
        let places = Places::default();
        let all: Vec<_> =
            (0..CONTROL_CONNECTIONS_MAX).map(|_| places.enter(Caller::User(1)).unwrap()).collect();
        all.iter().for_each(Ticket::works);
        assert!(places.enter(Caller::User(2)).is_none());
        all[3].waits();
        let new = places.enter(Caller::User(2)).unwrap();
        assert!(is_over(&all[3]));
        drop((all, new));
        assert_eq!(places.taken(), 0);
    }
}
