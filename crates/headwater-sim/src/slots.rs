//! A table of objects behind numbers that are never valid twice.
//!
//! A number holds a tag for its kind, a generation and a place. A place is used again, but with the next generation, so a
//! stale number is told from a live one; and the tag tells a stream's number from an event's. Deterministic: the same
//! program gets the same numbers.

/// Layout of a number, from the top: 8 bits tag, 24 bits generation, 32 bits place.
const TAG_SHIFT: u32 = 56;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_MASK: u64 = (1 << (TAG_SHIFT - GENERATION_SHIFT)) - 1;

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    tag: u64,
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u64,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table; `tag` is not zero and differs from every other table's.
    pub(crate) fn new(tag: u8) -> Self {
        Self { tag: u64::from(tag), places: Vec::new(), free: Vec::new() }
    }

    /// Stores `value` and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(Place { generation: 0, value: None });
                (self.places.len() - 1) as u32
            }
        };
        let slot = &mut self.places[place as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.value = Some(value);
        self.tag << TAG_SHIFT | slot.generation << GENERATION_SHIFT | u64::from(place)
    }

    /// The object called `raw`, if it still exists.
    pub(crate) fn get(&self, raw: u64) -> Option<&T> {
        let place = self.places.get(raw as u32 as usize)?;
        if self.stamp(place) == raw >> GENERATION_SHIFT { place.value.as_ref() } else { None }
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, raw: u64) -> Option<&mut T> {
        let tag = self.tag;
        let place = self.places.get_mut(raw as u32 as usize)?;
        let stamp = tag << (TAG_SHIFT - GENERATION_SHIFT) | place.generation;
        if stamp == raw >> GENERATION_SHIFT { place.value.as_mut() } else { None }
    }

    /// Takes the object out; its number is stale from now on.
    pub(crate) fn remove(&mut self, raw: u64) -> Option<T> {
        let value = {
            self.get(raw)?;
            self.places[raw as u32 as usize].value.take()?
        };
        self.free.push(raw as u32);
        Some(value)
    }

    /// All objects with their numbers, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let raw = self.stamp(place) << GENERATION_SHIFT | index as u64;
            place.value.as_ref().map(|value| (raw, value))
        })
    }

    fn stamp(&self, place: &Place<T>) -> u64 {
        self.tag << (TAG_SHIFT - GENERATION_SHIFT) | place.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_stale_for_ever_once_its_object_is_gone() {
        let mut slots = Slots::new(3);
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_ne!(first, second);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&"second"));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(second, &"second")]);
    }

    #[test]
    fn a_number_of_another_kind_names_nothing() {
        let mut streams = Slots::new(1);
        let mut events = Slots::new(2);
        let stream = streams.insert(());
        events.insert(());
        assert_eq!(events.get(stream), None);
        assert_eq!(events.get_mut(stream), None);
    }
}
