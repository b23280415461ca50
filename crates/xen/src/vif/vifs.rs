//! All vifs of this domain: finds them in xenstore, serves them, and releases them.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use super::backend::{Action, Backend, Seen, XenbusState};
use super::keys::{FrontKeys, KeyError, Offer, VifKeys};
use crate::hypervisor::DomainId;
use crate::store::{Client, StoreError};

/// The back ends' directory, below the directory of weir's domain.
const ROOT: &str = "backend/vif";

/// A vif; `xl` calls it `vifDOMAIN.HANDLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VifId {
    /// The guest's domain.
    pub domain: DomainId,
    /// The vif's number in the guest.
    pub handle: u32,
}

impl VifId {
    fn path(self) -> String {
        format!("{ROOT}/{}/{}", self.domain.0, self.handle)
    }

    /// Returns the token of this vif's watches, on its directory and the front end's state.
    fn token(self) -> String {
        format!("{}/{}", self.domain.0, self.handle)
    }

    fn from_token(token: &str) -> Option<Self> {
        let (domain, handle) = token.split_once('/')?;
        Some(Self { domain: DomainId(domain.parse().ok()?), handle: handle.parse().ok()? })
    }
}

impl std::fmt::Display for VifId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vif{}.{}", self.domain.0, self.handle)
    }
}

/// The switch's part.
pub trait Serve {
    /// Returns the offer for a new vif; `None` leaves the vif to another back end.
    fn offer(&mut self, vif: VifId, keys: &VifKeys) -> Option<Offer>;

    /// Maps the rings of a ready front end and serves it.
    ///
    /// # Errors
    /// The reason for xenstore's `error` node. No resource of the vif may stay mapped then.
    fn connect(&mut self, vif: VifId, keys: &VifKeys, front: &FrontKeys) -> Result<(), String>;

    /// Releases the vif's rings: nothing may stay mapped.
    fn disconnect(&mut self, vif: VifId);

    /// Notes that the vif was removed.
    fn forget(&mut self, vif: VifId);

    /// Notes that the vif was closed for `reason`. A guest can cause that again and again.
    fn closed(&mut self, vif: VifId, reason: &str);

    /// Notes that xenstore has refused a request. A guest can cause that again and again.
    fn refused(&mut self, error: &StoreError);
}

/// A vif that weir serves.
struct Served {
    keys: VifKeys,
    offer: Offer,
    backend: Backend,
}

impl Served {
    fn watched(&self, vif: VifId) -> [String; 2] {
        [vif.path(), format!("{}/state", self.keys.frontend)]
    }
}

/// Vifs by xenstore, over any client of it. The thread that calls [`Vifs::poll`] does all the work.
pub struct Vifs<S> {
    client: Client<S>,
    served: BTreeMap<VifId, Served>,
    /// The vif under work. It is set only after an error of the connection, which left the work
    /// half done.
    amid: Option<VifId>,
}

#[derive(Debug, thiserror::Error)]
enum VifError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl VifError {
    /// Separates errors of this vif, such as refused keys, from errors of the connection. Only the
    /// latter stop the other vifs.
    fn of_vif(self) -> Result<String, StoreError> {
        match self {
            Self::Key(error) => Ok(error.to_string()),
            Self::Store(error) if error.name().is_some() => Ok(error.to_string()),
            Self::Store(error) => Err(error),
        }
    }
}

/// Tells the switch of a request that the server refuses, which is no error of the connection.
fn unless_refused(done: Result<(), StoreError>, serve: &mut impl Serve) -> Result<(), StoreError> {
    match done {
        Err(error) if error.name().is_some() => {
            serve.refused(&error);
            Ok(())
        }
        done => done,
    }
}

impl<S: Read + Write> Vifs<S> {
    /// Watches for vifs. The first [`poll`](Self::poll) finds existing ones, since a watch fires at
    /// once.
    ///
    /// # Errors
    /// xenstore cannot be reached.
    pub fn new(mut client: Client<S>) -> Result<Self, StoreError> {
        client.watch(ROOT, ROOT)?;
        Ok(Self { client, served: BTreeMap::new(), amid: None })
    }

    /// Continues with another connection, in place of a broken one. It checks all vifs, including those that have come
    /// and gone meanwhile, and starts again with the vif that was under work.
    ///
    /// # Errors
    /// The new connection is broken, too.
    pub fn reconnect(
        &mut self,
        mut client: Client<S>,
        serve: &mut impl Serve,
    ) -> Result<(), StoreError> {
        client.watch(ROOT, ROOT)?;
        for (vif, served) in &self.served {
            for path in served.watched(*vif) {
                unless_refused(client.watch(&path, &vif.token()), serve)?;
            }
        }
        self.client = client;
        if let Some(vif) = self.amid.take()
            && let Some(served) = self.served.get_mut(&vif)
        {
            serve.disconnect(vif);
            served.backend = Backend::new();
        }
        Ok(())
    }

    /// Returns the connection, for the caller to wait on.
    pub fn client(&self) -> &Client<S> {
        &self.client
    }

    /// Reads from the connection, which is readable.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn receive(&mut self) -> Result<(), StoreError> {
        self.client.receive()
    }

    /// Handles the xenstore events read so far. Checks each changed vif once, however often its guest wrote. Returns
    /// `true` if more events came meanwhile.
    ///
    /// # Errors
    /// The connection is broken. An error of one vif closes only that vif.
    pub fn poll(&mut self, serve: &mut impl Serve) -> Result<bool, StoreError> {
        // The bound keeps a guest that writes all the time from holding the caller here.
        for _ in 0..self.client.fired() {
            let Some(token) = self.client.next_fired() else { break };
            match VifId::from_token(&token) {
                Some(vif) => {
                    self.amid = Some(vif);
                    self.look(vif, serve)?;
                    self.amid = None;
                }
                None => self.rescan(serve)?,
            }
        }
        Ok(self.client.fired() > 0)
    }

    /// Closes `vif`, whose guest broke a rule while it was served.
    pub fn fail(
        &mut self,
        vif: VifId,
        reason: &str,
        serve: &mut impl Serve,
    ) -> Result<(), StoreError> {
        let Some(served) = self.served.get_mut(&vif) else { return Ok(()) };
        serve.closed(vif, reason);
        self.amid = Some(vif);
        let actions = served.backend.failed();
        // The kernel's `xenbus_dev_error` writes there as well, and `xl` users look there.
        self.set(&format!("error/{}/error", vif.path()), reason.as_bytes(), serve)?;
        self.carry_out(vif, actions, serve)?;
        self.amid = None;
        Ok(())
    }

    /// Finds new vifs. Vifs that are removed have their own watches.
    fn rescan(&mut self, serve: &mut impl Serve) -> Result<(), StoreError> {
        for domain in self.client.directory(ROOT)? {
            let Ok(number) = domain.parse() else { continue };
            for handle in self.client.directory(&format!("{ROOT}/{domain}"))? {
                let Ok(handle) = handle.parse() else { continue };
                let vif = VifId { domain: DomainId(number), handle };
                if !self.served.contains_key(&vif) {
                    self.find(vif, serve)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the toolstack's keys of a vif; `None` if they are incomplete.
    fn keys(&mut self, vif: VifId) -> Result<Option<VifKeys>, StoreError> {
        let path = vif.path();
        let client = &mut self.client;
        let read = |key: &str| Ok::<_, VifError>(client.read(&format!("{path}/{key}"))?);
        match VifKeys::read(read).map_err(VifError::of_vif) {
            Ok(keys) => Ok(Some(keys).filter(|keys| keys.domain == vif.domain)),
            Err(Ok(_)) => Ok(None),
            Err(Err(error)) => Err(error),
        }
    }

    /// Checks a vif that is not served. Its directory may still be empty, or already removed; then the next change
    /// brings another check.
    fn find(&mut self, vif: VifId, serve: &mut impl Serve) -> Result<(), StoreError> {
        let Some(keys) = self.keys(vif)? else { return Ok(()) };
        let Some(offer) = serve.offer(vif, &keys) else { return Ok(()) };
        let served = Served { keys, offer, backend: Backend::new() };
        let watched = served.watched(vif);
        // The vif is noted first, so that another connection watches it again.
        self.served.insert(vif, served);
        for path in watched {
            unless_refused(self.client.watch(&path, &vif.token()), serve)?;
        }
        Ok(())
    }

    fn state(&mut self, path: &str) -> Result<Option<XenbusState>, StoreError> {
        Ok(self.get(path)?.and_then(|value| XenbusState::parse(&value)))
    }

    /// Reads a value; `None` too if the server refuses it.
    fn get(&mut self, path: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.client.read(path) {
            Err(error) if error.name().is_some() => Ok(None),
            value => value,
        }
    }

    /// Sets a value. If the server refuses it (no room, a removed directory), the next check shows the effect.
    fn set(&mut self, path: &str, value: &[u8], serve: &mut impl Serve) -> Result<(), StoreError> {
        let done = self.client.write(path, value);
        unless_refused(done, serve)
    }

    /// Compares the actual state with the required one. Both watches of a vif fire as soon as they are set, so the
    /// first check comes soon.
    fn look(&mut self, vif: VifId, serve: &mut impl Serve) -> Result<(), StoreError> {
        let keys = self.keys(vif)?;
        let Some(served) = self.served.get(&vif) else { return Ok(()) };
        // Another vif has replaced this one, whose removal was not seen. The old one is released first.
        let replaced = keys.as_ref().is_some_and(|keys| *keys != served.keys);
        let path = vif.path();
        let front = format!("{}/state", served.keys.frontend);
        let seen = Seen {
            present: keys.is_some() && !replaced,
            own: self.state(&format!("{path}/state"))?,
            online: self.get(&format!("{path}/online"))?.is_some_and(|online| online == b"1"),
            front: self.state(&front)?,
        };
        let Some(served) = self.served.get_mut(&vif) else { return Ok(()) };
        let actions = served.backend.step(seen);
        self.carry_out(vif, actions, serve)?;
        if replaced { self.find(vif, serve) } else { Ok(()) }
    }

    fn carry_out(
        &mut self,
        vif: VifId,
        actions: Vec<Action>,
        serve: &mut impl Serve,
    ) -> Result<(), StoreError> {
        for action in actions {
            match action {
                Action::Advertise => self.advertise(vif, serve)?,
                Action::Connect => self.connect(vif, serve)?,
                Action::Disconnect => serve.disconnect(vif),
                Action::Publish(state) => self.publish(vif, state, serve)?,
                Action::Forget => self.forget(vif, serve)?,
            }
        }
        Ok(())
    }

    /// Writes `changes` to keys of the vif's directory, all or none. Writes none if the directory was removed, since
    /// writing would make it again.
    fn write_own(
        &mut self,
        vif: VifId,
        changes: &[(&str, Vec<u8>)],
        serve: &mut impl Serve,
    ) -> Result<(), StoreError> {
        let path = vif.path();
        let done = self.client.transaction(|transaction| {
            if transaction.read(&format!("{path}/frontend"))?.is_none() {
                return Ok(());
            }
            for (key, value) in changes {
                transaction.write(&format!("{path}/{key}"), value)?;
            }
            Ok(())
        });
        unless_refused(done, serve)
    }

    fn publish(
        &mut self,
        vif: VifId,
        state: XenbusState,
        serve: &mut impl Serve,
    ) -> Result<(), StoreError> {
        self.write_own(vif, &[("state", state.to_value().to_vec())], serve)
    }

    fn advertise(&mut self, vif: VifId, serve: &mut impl Serve) -> Result<(), StoreError> {
        let Some(served) = self.served.get(&vif) else { return Ok(()) };
        let mut changes: Vec<_> = served
            .offer
            .keys()
            .into_iter()
            .map(|(key, value)| (key, value.to_string().into_bytes()))
            .collect();
        changes.push(("state", XenbusState::InitWait.to_value().to_vec()));
        self.write_own(vif, &changes, serve)
    }

    fn connect(&mut self, vif: VifId, serve: &mut impl Serve) -> Result<(), StoreError> {
        let Some(served) = self.served.get_mut(&vif) else { return Ok(()) };
        let client = &mut self.client;
        let directory = &served.keys.frontend;
        let read = |key: &str| Ok::<_, VifError>(client.read(&format!("{directory}/{key}"))?);
        let outcome = match FrontKeys::read(&served.offer, read).map_err(VifError::of_vif) {
            Ok(front) => serve.connect(vif, &served.keys, &front),
            Err(Ok(reason)) => Err(reason),
            Err(Err(error)) => return Err(error),
        };
        match outcome {
            Ok(()) => {
                let action = served.backend.connected();
                self.carry_out(vif, vec![action], serve)
            }
            Err(reason) => self.fail(vif, &reason, serve),
        }
    }

    fn forget(&mut self, vif: VifId, serve: &mut impl Serve) -> Result<(), StoreError> {
        let Some(served) = self.served.remove(&vif) else { return Ok(()) };
        serve.forget(vif);
        for path in served.watched(vif) {
            match self.client.unwatch(&path, &vif.token()) {
                Err(error) if error.name().is_none() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
