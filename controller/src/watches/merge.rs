//! Several watches of one kind, one a namespace, as one: first a whole list, once each has listed, then changes. A
//! watch that lists again yields what differs, so that the objects of other namespaces stay. Pure.

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use std::collections::HashMap;

/// Merges events.
pub(super) struct Merge<K> {
    namespaces: Vec<Listing<K>>,
    listed: bool,
}

struct Listing<K> {
    name: String,
    /// By name, until the first list of all is complete; then those of a list that is under way.
    objects: HashMap<String, Option<K>>,
    listed: bool,
}

impl<K: Resource + Clone> Merge<K> {
    pub(super) fn new(namespaces: Vec<String>) -> Self {
        let listing = |name| Listing { name, objects: HashMap::new(), listed: false };
        Self { namespaces: namespaces.into_iter().map(listing).collect(), listed: false }
    }

    /// What an event of the watch `index` means to all; `known` are the objects of a namespace that were passed on.
    pub(super) fn absorb(&mut self, index: usize, event: Event<K>, known: impl Fn(&str) -> Vec<K>) -> Vec<Event<K>> {
        if self.listed {
            return self.namespaces[index].relist(event, known);
        }
        self.namespaces[index].list(event);
        if !self.namespaces.iter().all(|namespace| namespace.listed) {
            return Vec::new();
        }
        self.listed = true;
        let objects = self.namespaces.iter_mut().flat_map(|namespace| namespace.objects.drain());
        let objects = objects.filter_map(|(_, object)| object.map(Event::InitApply));
        [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
    }
}

impl<K: Resource + Clone> Listing<K> {
    fn list(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.objects.clear(),
            Event::InitApply(object) | Event::Apply(object) => {
                self.objects.insert(object.name_any(), Some(object));
            }
            Event::Delete(object) => {
                self.objects.remove(&object.name_any());
            }
            Event::InitDone => self.listed = true,
        }
    }

    fn relist(&mut self, event: Event<K>, known: impl Fn(&str) -> Vec<K>) -> Vec<Event<K>> {
        match event {
            Event::Init => self.objects.clear(),
            Event::InitApply(object) => {
                self.objects.insert(object.name_any(), None);
                return vec![Event::Apply(object)];
            }
            Event::InitDone => {
                let gone =
                    known(&self.name).into_iter().filter(|object| !self.objects.contains_key(&object.name_any()));
                let gone = gone.map(Event::Delete).collect();
                self.objects.clear();
                return gone;
            }
            change => return vec![change],
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some(namespace.to_owned());
        object
    }

    fn words(events: &[Event<ConfigMap>]) -> Vec<String> {
        events.iter().map(ToString::to_string).collect()
    }

    fn merge() -> Merge<ConfigMap> {
        Merge::new(vec!["a".to_owned(), "b".to_owned()])
    }

    const NOTHING: fn(&str) -> Vec<ConfigMap> = |_| Vec::new();

    #[test]
    fn nothing_is_said_before_all_have_listed_and_then_everything_at_once() {
        let mut merge = merge();
        let early = [
            (0, Event::Init),
            (0, Event::InitApply(object("a", "x"))),
            (0, Event::InitApply(object("a", "y"))),
            (0, Event::InitDone),
            (1, Event::Init),
            (0, Event::Delete(object("a", "x"))),
            (1, Event::InitApply(object("b", "half"))),
            // Its list broke off and begins anew.
            (1, Event::Init),
        ];
        for (index, event) in early {
            assert!(merge.absorb(index, event, NOTHING).is_empty());
        }
        let all = merge.absorb(1, Event::InitDone, NOTHING);
        assert_eq!(words(&all), ["Init", "InitApply(y)", "InitDone"]);
    }

    #[test]
    fn a_namespace_that_lists_again_changes_only_its_own() {
        let mut merge = merge();
        merge.absorb(0, Event::InitDone, NOTHING);
        merge.absorb(1, Event::InitDone, NOTHING);
        assert_eq!(words(&merge.absorb(0, Event::Apply(object("a", "x")), NOTHING)), ["Apply(x)"]);
        let known = |namespace: &str| {
            assert_eq!(namespace, "b");
            vec![object("b", "stays"), object("b", "gone")]
        };
        assert!(merge.absorb(1, Event::Init, known).is_empty());
        let stays = merge.absorb(1, Event::InitApply(object("b", "stays")), known);
        assert_eq!(words(&stays), ["Apply(stays)"]);
        assert_eq!(words(&merge.absorb(1, Event::InitDone, known)), ["Delete(gone)"]);
    }
}
