//! For tests: what a process that is killed leaves behind.

use std::cell::RefCell;

type Look = Box<dyn FnMut()>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// Runs `work`, and `look` before each write that it makes through a [`Window`](crate::Window).
pub fn between_writes<T>(look: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
    LOOK.set(Some(Box::new(look)));
    let done = work();
    LOOK.set(None);
    done
}

/// A write is about to be made. One that is made while looking is not looked at.
pub(crate) fn about_to_write() {
    let Some(mut look) = LOOK.take() else { return };
    look();
    LOOK.set(Some(look));
}
