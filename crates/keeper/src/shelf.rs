//! The keeper's descriptors, by name. The part of a name before its first slash is its owner, an interface: each owner
//! has a limit of its own, so that no tenant takes another one's room.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weir_foreign::Party;
use weir_limits::KEPT_PER_OWNER_MAX;

/// The reason why a descriptor is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The descriptor's owner has reached the limit, counting descriptors that are not closed yet.
    Owner,
    /// All owners together have reached the limit.
    Shelf,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "its owner has as many descriptors as it may",
            Self::Shelf => "there are as many descriptors as there may be",
        })
    }
}

#[derive(Debug)]
struct Owner {
    held: usize,
    party: Party,
}

/// Descriptors by name.
#[derive(Debug)]
pub(crate) struct Shelf {
    held: BTreeMap<String, OwnedFd>,
    owners: BTreeMap<String, Owner>,
    max: usize,
}

pub(crate) fn owner_of(name: &str) -> &str {
    name.split_once('/').map_or(name, |(owner, _)| owner)
}

impl Shelf {
    /// An empty shelf with room for `max` descriptors.
    pub(crate) fn new(max: usize) -> Self {
        Self { held: BTreeMap::new(), owners: BTreeMap::new(), max }
    }

    /// Keeps a descriptor, in place of an earlier one with this name.
    pub(crate) fn store(&mut self, name: String, descriptor: OwnedFd) -> Result<(), Full> {
        let open: usize = self.owners.values().map(|owner| owner.party.open()).sum();
        let shelf_is_full = self.held.len() + open >= self.max;
        let owner = owner_of(&name).to_owned();

        let new = Owner { held: 0, party: Party::new(&owner) };
        let owner = self.owners.entry(owner).or_insert(new);
        match self.held.entry(name) {
            Entry::Occupied(mut held) => owner.party.close(held.insert(descriptor)),
            Entry::Vacant(_) if owner.held + owner.party.open() >= KEPT_PER_OWNER_MAX => {
                owner.party.close(descriptor);
                return Err(Full::Owner);
            }
            Entry::Vacant(_) if shelf_is_full => {
                owner.party.close(descriptor);
                return Err(Full::Shelf);
            }
            Entry::Vacant(place) => {
                place.insert(descriptor);
                owner.held += 1;
            }
        }
        Ok(())
    }

    /// Closes the descriptor with this name.
    pub(crate) fn remove(&mut self, name: &str) {
        let Some(descriptor) = self.held.remove(name) else { return };
        if let Some(owner) = self.owners.get_mut(owner_of(name)) {
            owner.held -= 1;
            owner.party.close(descriptor);
        }
        self.owners.retain(|_, owner| owner.held > 0 || owner.party.open() > 0);
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    /// The descriptor with this name.
    pub(crate) fn get(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.held.get(name).map(AsFd::as_fd)
    }
}
