//! For tests: the memory that a killed process leaves behind.

use std::cell::RefCell;

type Look = Box<dyn FnMut()>;

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// Runs `work`, and `look` before each of its writes through a [`Window`](crate::Window).
pub fn between_writes<T>(look: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
    LOOK.set(Some(Box::new(look)));
    let done = work();
    LOOK.set(None);
    done
}

/// Announces a write. A write by `look` itself is not announced.
pub(crate) fn about_to_write() {
    let Some(mut look) = LOOK.take() else { return };
    look();
    LOOK.set(Some(look));
}
