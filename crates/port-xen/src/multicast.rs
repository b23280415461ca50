//! The multicast groups of a guest (`feature-multicast-control` of `public/io/netif.h`).

use std::sync::RwLock;

use weir_limits::XEN_MULTICAST_MAX;
use weir_netif::Status;
use weir_wire::Mac;

/// The groups of one guest; `None` until it has announced that it names them. Until then, it gets all groups.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<Option<Vec<Mac>>>);

impl Groups {
    /// Prepares for a new front end. With `named` it names the groups that it wants.
    pub(crate) fn reset(&self, named: bool) {
        *self.0.write().unwrap_or_else(|e| e.into_inner()) = named.then(Vec::new);
    }

    /// Adds or removes a group. Returns the status for the answer.
    pub(crate) fn change(&self, address: Mac, add: bool) -> Status {
        let mut groups = self.0.write().unwrap_or_else(|e| e.into_inner());
        let Some(groups) = groups.as_mut() else { return Status::Error };
        let known = groups.iter().position(|group| *group == address);
        match (known, add) {
            (Some(at), false) => {
                groups.swap_remove(at);
            }
            (None, true) if groups.len() < XEN_MULTICAST_MAX => groups.push(address),
            (None, true) => return Status::Error,
            (Some(_), true) | (None, false) => {}
        }
        Status::Okay
    }

    /// Returns true if the guest wants a frame to `to`.
    pub(crate) fn wants(&self, to: Mac) -> bool {
        if !to.is_multicast() || to.is_broadcast() {
            return true;
        }
        let groups = self.0.read().unwrap_or_else(|e| e.into_inner());
        groups.as_ref().is_none_or(|groups| groups.contains(&to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

    #[test]
    fn a_guest_that_names_its_groups_gets_those_and_all_that_is_no_group() {
        let groups = Groups::default();
        assert!(groups.wants(GROUP));
        assert_eq!(groups.change(GROUP, true), Status::Error, "nobody asked");
        groups.reset(true);
        let other = Mac([1, 0, 0x5e, 0, 0, 2]);
        assert!(!groups.wants(GROUP) && groups.wants(Mac::BROADCAST));
        assert!(groups.wants(Mac([2, 0, 0, 0, 0, 1])));
        assert_eq!(groups.change(GROUP, true), Status::Okay);
        assert!(groups.wants(GROUP) && !groups.wants(other));
        assert_eq!(groups.change(GROUP, false), Status::Okay);
        assert!(!groups.wants(GROUP));
        groups.reset(false);
        assert!(groups.wants(GROUP));
    }

    #[test]
    fn groups_are_bounded() {
        let groups = Groups::default();
        groups.reset(true);
        let group = |n: usize| Mac([1, 0, 0x5e, 0, 0, n as u8]);
        for n in 0..XEN_MULTICAST_MAX {
            assert_eq!(groups.change(group(n), true), Status::Okay);
        }
        assert_eq!(groups.change(group(XEN_MULTICAST_MAX), true), Status::Error);
        assert_eq!(groups.change(group(0), true), Status::Okay, "known already");
    }
}
