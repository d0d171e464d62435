"""Who answers, as the options of commands name it; and what the model in the box needs."""
