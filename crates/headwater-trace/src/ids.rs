//! A map from allocation ids to what is known of them.
//!
//! Ids are nearly always 0, 1, 2, ... so they index a vector; ids far beyond what has been seen go to a hash map with
//! a seeded hash, so that a hostile file can neither make the vector huge nor the map slow. An id stays where it was
//! first put.

use std::collections::HashMap;

/// How far beyond twice the number of writes the vector may reach.
const SLACK: usize = 1024;

/// What is known of allocations, by id.
#[derive(Clone, Debug)]
pub(crate) struct IdTable<T> {
    dense: Vec<T>,
    sparse: HashMap<u64, T>,
    /// What an id not seen before has.
    empty: T,
    writes: usize,
}

impl<T: Copy> IdTable<T> {
    pub(crate) fn new(empty: T) -> Self {
        Self { dense: Vec::new(), sparse: HashMap::new(), empty, writes: 0 }
    }

    pub(crate) fn get(&self, id: u64) -> T {
        if !self.sparse.is_empty()
            && let Some(&value) = self.sparse.get(&id)
        {
            return value;
        }
        usize::try_from(id).ok().and_then(|at| self.dense.get(at)).copied().unwrap_or(self.empty)
    }

    pub(crate) fn set(&mut self, id: u64, value: T) {
        self.writes += 1;
        if !self.sparse.is_empty()
            && let Some(known) = self.sparse.get_mut(&id)
        {
            *known = value;
            return;
        }
        match usize::try_from(id) {
            Ok(at) if at < self.dense.len() => self.dense[at] = value,
            Ok(at) if at <= 2 * self.writes + SLACK => {
                self.dense.resize(at + 1, self.empty);
                self.dense[at] = value;
            }
            _ => _ = self.sparse.insert(id, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_ids_do_not_make_the_vector_grow() {
        let mut table = IdTable::new(0u8);
        table.set(u64::MAX, 1);
        table.set(1 << 40, 2);
        table.set(3, 3);
        assert_eq!((table.get(u64::MAX), table.get(1 << 40), table.get(3), table.get(4)), (1, 2, 3, 0));
        assert!(table.dense.len() <= 4);
    }

    #[test]
    fn an_id_keeps_its_value_when_the_vector_grows_past_it() {
        let mut table = IdTable::new(0u64);
        table.set(5_000, 77);
        for id in 0..10_000 {
            if id != 5_000 {
                table.set(id, id);
            }
        }
        assert_eq!((table.get(4_999), table.get(5_000), table.get(5_001)), (4_999, 77, 5_001));
    }
}
