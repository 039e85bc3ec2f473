"""Texts that heads are measured on where the user names none: plain English with punctuation, about 70 tokens each."""

TEXTS = (
    "The bank by the river was eroded after weeks of rain, and the council closed the path. Walkers, who had used "
    "it for years, now take the longer way over the bridge; most of them say that they do not mind, because the "
    "view from there, on a clear morning, reaches as far as the hills.",
    "When the train stopped between two stations, nobody said a word. A child asked her father why the lights had "
    "gone out, and he answered that the driver was waiting for a signal. Ten minutes later the train moved on, "
    "slowly at first, and the passengers began to talk as if they had known each other for a long time.",
    "To bake this bread, mix the flour with salt, water and a little yeast. Let the dough rest for an hour (two "
    "hours in a cold kitchen), fold it three times, and bake it until the crust is dark. Bread that has cooled "
    "keeps for four days; bread that was cut while it was hot does not.",
    "The committee published its report on Monday. It found that the cost of the new hospital had doubled since "
    "2015, that two of the five contracts were signed without a tender, and that the minister had known of both. "
    "The minister said that she would read the report before she answered any questions.",
    "Light from the star takes more than four years to reach us, so what we see tonight happened when the "
    "telescope was still being built. Its mirror collects that light, a camera counts it, and a computer compares "
    "the counts of one night with those of another: a planet that passes in front of the star makes it a little "
    "darker.",
    "Anna gave the key to Maria because she was leaving the city. Maria put the key into a drawer, forgot it, and "
    'found it again when Anna came back in spring. "You kept it," said Anna. "I did not know that I had it," said '
    "Maria, and both of them laughed about the drawer, the key and the long winter.",
    "A function that calls itself must come to an end. The first version of ours did not: given an empty list, it "
    "asked for the rest of that list, which is empty, too, and so on until the memory was full. The second "
    "version checks whether the list is empty, returns zero if it is, and otherwise adds one to the length of the "
    "rest.",
    "The trial lasted for eleven days. Three witnesses had seen the defendant near the warehouse, but none of "
    "them could say when he had left; the guard, whose evidence mattered most, changed his account twice. In the "
    "end the jury believed the neighbour, and the defendant, who had never spoken in court, was free to go.",
)
