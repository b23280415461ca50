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
    /// Shows the guest the next `chains` that are complete, with one index write.
    fn show(&mut self, chains: u16);
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
    #[inline]
    fn show(&mut self, chains: u16) {
        if let Some(ring) = self {
            ring.show(chains);
        }
    }
}

impl<R: TransmitRing> TransmitRing for Option<R> {
    #[inline]
    fn wants_call(&mut self) -> bool {
        self.as_mut().is_some_and(R::wants_call)
    }
}
