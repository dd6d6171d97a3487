"""Questions in the style of Spec-Bench: conversation, translation, summaries, questions, sums, answers from texts."""

import json
from pathlib import Path

_LONGEST = 1800
"""Characters of a question: the model's context is short."""

_QUESTIONS = (
    "Tell me a story about a girl who finds a key in the garden.",
    "I am going on a trip to the sea with my family. What should we take with us?",
    "Pretend that you are a ship's captain and describe your first storm.",
    "What is the difference between a lake and a river? Explain it to a child.",
    "Write a letter to a friend who has moved to another town.",
    "Which is larger, the Moon or the Earth, and how do we know?",
    "Translate German to English: Der Hund schläft unter dem Tisch, weil es draußen regnet.",
    "Translate German to English: Die Stadt hat im letzten Jahr eine neue Brücke gebaut.",
    "Translate German to English: Viele Kinder lernen in der Schule ein Instrument.",
    "Summarize: The museum opened its doors in the spring. In its first week five thousand people came to see the old "
    "ships that were found in the harbour. The director said that she had never expected so many visitors. The ships "
    "are about eight hundred years old and will stay in the museum until the end of the year.",
    "Summarize: Heavy rain fell in the north of the country on Monday. Two rivers left their beds, and some roads were "
    "closed. Nobody was hurt. The fire brigade pumped water out of forty houses. By Wednesday the rain had stopped.",
    "Summarize: A boy of nine years won the chess tournament of his town. He began to play when he was four. His "
    "teacher says that he thinks longer than grown people do. Next month he will play against the best of the country.",
    "Who invented the telephone?",
    "What is the capital of France?",
    "When did people first walk on the Moon?",
    "Why do leaves become red in autumn?",
    "Anna has 12 apples. She gives 5 to Ben and buys 8 more. How many apples does she have?",
    "A train goes 60 miles in an hour. How far does it go in 4 hours?",
    "A book has 120 pages. Tom reads 15 pages a day. After how many days has he finished it?",
    "Three friends share 24 sweets, and each eats 2 of them. How many are left?",
    "Volcanoes are mountains out of which hot rock comes from below. Some of them sleep for hundreds of years. "
    "Question: What comes out of volcanoes?",
    "The heart is a muscle that pumps blood through the body. It beats about seventy times in a minute. "
    "Question: How often does the heart beat?",
    "Bees live together in a hive. There is one queen, who lays the eggs, and there are thousands of workers. "
    "Question: Who lays the eggs in a hive?",
    "The old bridge was built in 1887 by an engineer called Brown. It was closed in 1954 and is now a park. "
    "Question: Who built the bridge?",
)


def chat_prompts(questions: str | None) -> list[str]:
    """Some first turns of a file of Spec-Bench, spread evenly over its kinds, or those above."""
    if questions is None:
        return list(_QUESTIONS)
    lines = Path(questions).read_text(encoding="utf-8").splitlines()
    turns = [json.loads(line)["turns"][0][:_LONGEST] for line in lines]
    return turns[:: max(1, len(turns) // len(_QUESTIONS))]
