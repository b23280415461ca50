//! What those who decide when a guest is called ask of its rings.

/// A guest's ring, as far as calls go.
pub trait GuestRing {
    /// Its entries; none where it is not in service.
    fn size(&mut self) -> u32;

    /// Calls the guest if it wants that. Says whether it did, `None` if there was nothing to tell.
    fn call_if_wanted(&mut self) -> Option<bool>;
}

/// One that the guest receives from.
pub trait ReceiveRing: GuestRing {
    /// What ends the service of the port.
    type Error;

    /// The guest can receive.
    fn is_ready(&self) -> bool;

    /// Shows the guest the next `chains` that are complete, with one index write.
    fn show(&mut self, chains: u16);

    /// Asks for a kick at the next buffer, and says whether one came since the last look. `index`: of the queue.
    ///
    /// # Errors
    /// The guest broke a rule.
    fn arm(&mut self, index: usize) -> Result<bool, Self::Error>;

    /// Chains completed since it is in service.
    fn placed(&self) -> u64;

    /// A guest that polls has taken by itself what its call is held for.
    fn has_polled(&mut self) -> bool {
        false
    }

    /// Whether what was copied is to be shown.
    ///
    /// # Errors
    /// The memory that it went to is gone.
    fn check(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// One that the guest sends from.
pub trait TransmitRing: GuestRing {
    /// The guest would be called now.
    fn wants_call(&mut self) -> bool;
}

impl<R: GuestRing> GuestRing for Option<R> {
    #[inline]
    fn size(&mut self) -> u32 {
        self.as_mut().map_or(0, R::size)
    }

    #[inline]
    fn call_if_wanted(&mut self) -> Option<bool> {
        self.as_mut()?.call_if_wanted()
    }
}

impl<R: ReceiveRing> ReceiveRing for Option<R> {
    type Error = R::Error;

    fn is_ready(&self) -> bool {
        self.as_ref().is_some_and(R::is_ready)
    }

    #[inline]
    fn show(&mut self, chains: u16) {
        if let Some(ring) = self {
            ring.show(chains);
        }
    }

    fn arm(&mut self, index: usize) -> Result<bool, R::Error> {
        self.as_mut().map_or(Ok(false), |ring| ring.arm(index))
    }

    fn placed(&self) -> u64 {
        self.as_ref().map_or(0, R::placed)
    }

    fn has_polled(&mut self) -> bool {
        self.as_mut().is_some_and(R::has_polled)
    }

    fn check(&mut self) -> Result<(), R::Error> {
        self.as_mut().map_or(Ok(()), R::check)
    }
}

impl<R: TransmitRing> TransmitRing for Option<R> {
    #[inline]
    fn wants_call(&mut self) -> bool {
        self.as_mut().is_some_and(R::wants_call)
    }
}
