//! Dear calls: the called guest pays for them, not the sender of the burst.
//!
//! A front end sets the price of its call: all waiters of the descriptor, maybe thousands, wake up in turn. The
//! caller notes the excess here; the worker charges it at the end of the burst.

use std::cell::{Cell, RefCell};

use weir_fabric::PortId;

use crate::{clock, cpu_loss};

/// Calls of one burst that are noted one by one, each several times as long as the rest of the burst. The last
/// takes the excess.
const NOTED_MAX: usize = 16;

thread_local! {
    static ANY: Cell<bool> = const { Cell::new(false) };
    static NOTED: RefCell<Vec<(PortId, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A call of `port` has taken `ns` more of this thread than calls usually do.
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

/// The most of `took_ns`, ending now, that this thread had its CPU (ns): a call may wake its preemptor, which is
/// nobody's cost.
#[cold]
pub fn cpu_ns(took_ns: u64) -> u64 {
    took_ns.min(cpu_loss::read(clock::now_ns()))
}

/// The CPU time of this thread (ns).
pub fn thread_cpu_ns() -> u64 {
    cpu_loss::thread_cpu_ns()
}

/// Some were noted since they were taken last.
#[inline]
pub(crate) fn any() -> bool {
    ANY.get()
}

/// Takes all that were noted.
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
