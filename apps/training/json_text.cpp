// json_text
