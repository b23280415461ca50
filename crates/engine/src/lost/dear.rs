//! Expensive calls: the called guest pays for them, not the sender of the burst.
//!
//! A front end determines the cost of its call: all waiters of the descriptor, maybe thousands, wake up in turn. The
//! caller notes the excess here; the worker charges it at the end of the burst.

use std::cell::{Cell, RefCell};

use weir_fabric::PortId;
pub use weir_guestmem::ticks::thread_cpu_ns;

use crate::lost::cpu_loss;
use crate::threads::clock;

/// Calls of one burst that are noted separately, each several times as long as the rest of the burst. The last one
/// takes the excess.
const NOTED_MAX: usize = 16;

thread_local! {
    static ANY: Cell<bool> = const { Cell::new(false) };
    static NOTED: RefCell<Vec<(PortId, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Notes that a call of `port` took `ns` more of this thread's time than is usual.
#[cold]
pub fn note(port: PortId, ns: u64) {
    NOTED.with_borrow_mut(|noted| {
        let full = noted.len() >= NOTED_MAX;
        match noted.last_mut() {
            Some(last) if full || last.0 == port => last.1 += ns,
            _ => noted.push((port, ns)),
        }
    });
    ANY.set(true);
}

/// The part of the last `took_ns` for which this thread can have had its CPU (ns): a call may wake a thread that
/// preempts the caller, and that time is charged to nobody.
#[cold]
pub fn cpu_ns(took_ns: u64) -> u64 {
    took_ns.min(cpu_loss::read(clock::now_ns()))
}

/// True if calls were noted since the last [`take`].
#[inline]
pub(crate) fn any() -> bool {
    ANY.get()
}

/// Takes all noted calls.
#[cold]
pub(crate) fn take(mut each: impl FnMut(PortId, u64)) {
    ANY.set(false);
    NOTED.with_borrow_mut(|noted| noted.drain(..).for_each(|(port, ns)| each(port, ns)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_taken_once_and_has_a_bound() {
        let port = |number| PortId::new(number).unwrap();
        assert!(!any());
        for number in 0..100 {
            note(port(number), 10);
            note(port(number), 1);
        }
        assert!(any());
        let mut taken = Vec::new();
        take(|port, ns| taken.push((port, ns)));
        assert_eq!(taken.len(), NOTED_MAX);
        assert_eq!(taken[0], (port(0), 11));
        assert_eq!(taken.iter().map(|(_, ns)| ns).sum::<u64>(), 1100);
        assert!(!any());
        take(|_, _| panic!("twice"));
    }
}
