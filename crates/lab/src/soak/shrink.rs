//! Shrinks a failing case to a smaller one that still fails.

/// Shrinks a case: takes the first of `smaller` that still `fails`, repeatedly, within `runs_max`
/// runs. Returns the last case, its failure, and the number of runs.
pub(super) fn shrink<C, E>(
    (mut case, mut error): (C, E),
    smaller: impl Fn(&C) -> Vec<C>,
    fails: impl Fn(&C) -> Option<E>,
    runs_max: u32,
) -> (C, E, u32) {
    let mut runs = 0;
    loop {
        let found = smaller(&case).into_iter().find_map(|smaller| {
            runs += 1;
            let error = if runs <= runs_max { fails(&smaller) } else { None };
            error.map(|error| (smaller, error))
        });
        match found {
            Some(found) => (case, error) = found,
            None => return (case, error, runs.min(runs_max)),
        }
    }
}

/// Returns the list without one part: halves first, then quarters, down to each element.
pub(super) fn shorter<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> + '_ {
    let lens = std::iter::successors(Some(list.len().div_ceil(2)), |len| match len {
        0 | 1 => None,
        len => Some(len.div_ceil(2)),
    });
    lens.filter(|len| *len > 0).flat_map(move |len| {
        let starts = (0..list.len()).step_by(len);
        starts.map(move |at| {
            list.iter().take(at).chain(list.iter().skip(at + len)).cloned().collect()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_fails_and_nothing_smaller_does() {
        let list: Vec<u32> = (0..100).collect();
        let fails = |list: &Vec<u32>| (list.contains(&17) && list.contains(&83)).then_some("both");
        let smaller = |list: &Vec<u32>| shorter(list).collect();
        let (left, error, runs) = shrink((list.clone(), "first"), smaller, fails, 1_000);
        assert_eq!((left, error), (vec![17, 83], "both"));
        assert!(runs < 1_000);
        let (left, error, runs) = shrink((list.clone(), "first"), smaller, fails, 0);
        assert_eq!((left, error, runs), (list, "first", 0));
    }

    #[test]
    fn nothing_is_shorter_than_an_empty_list() {
        assert_eq!(shorter::<u8>(&[]).count(), 0);
        assert!(shorter(&[1]).eq([vec![]]));
    }
}
